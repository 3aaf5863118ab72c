// Where rows of keys and values are.
//
// Constants: ELEMENT, HEAD_PADDED, VALUE_PADDED, LOG2_PAGE. A row is HEAD_PADDED and then
// VALUE_PADDED numbers, multiples of 32; behind a key and behind a value are zeros.

/// Where a token's row begins.
DEVICE const ELEMENT* row_of(const u64* pages, u32 token) {
    const ELEMENT* page = reinterpret_cast<const ELEMENT*>(pages[token >> LOG2_PAGE]);
    const u32 row = token & ((1u << LOG2_PAGE) - 1);
    return page + u64(row) * (HEAD_PADDED + VALUE_PADDED);
}

