"""ibp_gnn: losslessly compressed node features for DGL."""
