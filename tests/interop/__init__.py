"""A silo in another language, which needs nothing but the protos and what docs/wire.md says."""
