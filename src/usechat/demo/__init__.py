"""The product tour: scripted agents of each kind behind one page, which need neither a key nor a network."""
