"""Which trials continue; one file per scheduler."""
