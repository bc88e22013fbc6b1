"""The tests of Headwater: this package owns no behaviour, it only lets tests import one another's support.
It never imports the product itself."""
