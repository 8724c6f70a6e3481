"""Gates that prove a bundle computes what its reference computes."""
