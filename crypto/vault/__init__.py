"""A silo's keeper of secrets: its interface, and the vault within a process."""
