"""The same rooms from the shell; each command imports its room when it is called."""
