"""How fast teams train beside their environment alone."""
