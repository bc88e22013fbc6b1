"""The topics architecture document, followed section by section: each test names the section and the sentence that it
holds. Sections are numbered as the document refers to them: §1 index, §2 log, §3 storage, §4 recovery, §5 metadata,
§6 layout, §7 scheduler, §8 concurrency, §9 latency, §11 closing list;
the queue topic stands behind it (DESIGN §10)."""
