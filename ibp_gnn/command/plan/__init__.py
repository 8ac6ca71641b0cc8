"""`ibp-gnn plan`: what to expect of compressed features in a training, before anyone changes its loop."""
