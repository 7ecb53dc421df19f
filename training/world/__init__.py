"""The small world the bundled model lives in: its names, scenes, pictures, questions and sets."""
