"""Topics below /v0, route by route, met from outside; and the parts of their door, each by itself.
Sections named are those of the topics architecture; what it leaves open is in the guide."""
