"""Stores small reference fixtures made with Hugging Face's own classes."""
