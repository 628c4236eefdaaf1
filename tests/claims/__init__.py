"""Claims of docs/threat-model.md, proved from rules, and the rules, tried on the code itself."""
