"""Frozen video encoders to a token store that can be trusted, and probes that read it."""

__version__ = "0.1.0"
