"""Drafts: small models that guess what a large one will say, trained on its states."""
