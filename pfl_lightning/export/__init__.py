"""Models of a run as files and modules that predict from raw inputs."""
