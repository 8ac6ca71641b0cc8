"""What scripts/bench_*.py are made of.

frame: config, record, JSON, tables and picture of any benchmark. timing: bits are checked, then methods take turns.
picture: the look of all pictures. uncompressed, wholegraph, nvcomp, cpu_peers: what compressed rows are compared with.
rows: real and generated rows by name. The others belong to the benchmark in their name; <benchmark>_report reads a
record and nothing else, so it shows the results of another machine as well.
"""
