"""A measurement as one HTML file that needs nothing else."""
