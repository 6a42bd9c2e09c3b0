"""What every room may use: errors, argument checks, settings."""
