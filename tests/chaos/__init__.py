"""launch/chaos: a tree under load and faults, and an oracle that computes what each token should be."""
