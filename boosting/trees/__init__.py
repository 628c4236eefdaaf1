"""Trees and ensembles: structure, files, packing, limits, local training."""
