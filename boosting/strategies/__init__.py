"""The strategies, one protocol a module, and the table that names them."""
