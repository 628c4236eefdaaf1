"""A silo that is not ours: written in another language from the protos and docs/wire.md alone."""
