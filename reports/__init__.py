"""From saved result folders to pages."""
