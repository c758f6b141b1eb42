"""What bounds the speed: each stage beside its floor and its peers, in one run."""
