// Addresses of rows of keys and values.
//
// Constants: ELEMENT, HEAD_PADDED, VALUE_PADDED, LOG2_PAGE. A row is a key of HEAD_PADDED numbers
// and a value of VALUE_PADDED numbers, both padded with zeros to multiples of 32.

/// Address of a token's row.
DEVICE const ELEMENT* row_of(const u64* pages, u32 token) {
    const ELEMENT* page = reinterpret_cast<const ELEMENT*>(pages[token >> LOG2_PAGE]);
    const u32 row = token & ((1u << LOG2_PAGE) - 1);
    return page + u64(row) * (HEAD_PADDED + VALUE_PADDED);
}

