"""One file a model family: reads a config, names the tensors, builds the graph."""
