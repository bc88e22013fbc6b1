"""What black-box tests share: a real server process, a raw HTTP client, a writer process, disk faults.
Nothing in here imports the product: it is met through its command line and its sockets only."""
