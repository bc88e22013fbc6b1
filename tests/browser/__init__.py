"""Headwater as a browser sees it: EventSource and fetch in headless Chromium, from a page of another origin.
The page's own script stands in browser.mjs; what it must have seen stands in the test."""
