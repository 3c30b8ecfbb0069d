"""What carries samples and parameters, by itself."""
