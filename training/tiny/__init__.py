"""The bundled model: tokenizer, network, training, evaluation and export in Hugging Face layout."""
