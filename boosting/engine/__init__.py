"""The histogram engine: cuts, bins, histograms, splits, growth; no party and no network."""
