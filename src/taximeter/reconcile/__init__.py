"""A provider's own report beside our receipts: two sums, and what their difference is made of.

Pure: the text of reports and receipts in, tables out. Owns: what those reports mean (`reading`), what our receipts come
to in their buckets (`books`), and the causes of what differs (`comparing`). Refuses to know: where reports come from,
and where receipts are kept.
"""
