"""Weight formats, recipes, and the numpy side of quantisation."""
