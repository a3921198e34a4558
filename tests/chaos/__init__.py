"""launch/chaos: a tree under load and faults, and an oracle that says what each token should be."""
