"""What people write: drafts, config files and settings, checked and explained. No I/O."""
