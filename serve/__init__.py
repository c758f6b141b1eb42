"""Video to frames to clips to encoder to store: planning and bulk extraction."""
