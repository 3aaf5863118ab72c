//! Memory maps in huge pages.

use memmap2::MmapMut;
use vattention_core::engine::PageSize;

/// Bytes of a huge page, which one entry of the processor's page tables covers. Gathering rows from
/// small pages costs a page-table walk for most rows.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Maps `bytes` bytes in huge pages that the administrator has reserved (hugetlbfs); `None` if too
/// few of them are free, or if most of the last one would be unused.
#[cfg(target_os = "linux")]
pub(super) fn reserved(bytes: usize) -> Option<MmapMut> {
    if short_rest(bytes).is_some() {
        return None;
    }
    let whole = bytes.checked_next_multiple_of(HUGE_PAGE)?;
    let page_bits = u8::try_from(HUGE_PAGE.ilog2()).ok();
    let map = memmap2::MmapOptions::new().huge(page_bits).len(whole).map_anon().ok()?;
    // A container's limit is checked only at the first access to a page, where exceeding the limit
    // kills the process. Populating all pages here returns an error instead.
    map.advise(memmap2::Advice::PopulateWrite).ok()?;
    Some(map)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn reserved(_: usize) -> Option<MmapMut> {
    None
}

/// Size of a map that contains `bytes` bytes in whole huge pages, at any alignment of the map.
fn with_slack(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)
}

/// Bytes after the last whole huge page, if there are some, but less than half of a huge page: they
/// are in small pages, because a huge page is resident as a whole.
fn short_rest(bytes: usize) -> Option<usize> {
    let rest = bytes % HUGE_PAGE;
    (bytes > HUGE_PAGE && (1..HUGE_PAGE / 2).contains(&rest)).then_some(rest)
}

/// Maps memory for `bytes` bytes in pages of the given size; a short rest after the last whole huge
/// page is in small pages. Returns the map and the position in
/// it of the first address that is a multiple of [`HUGE_PAGE`].
pub(super) fn map_aligned(bytes: usize, pages: PageSize) -> Option<(MmapMut, usize)> {
    let map = MmapMut::map_anon(with_slack(bytes)?).ok()?;
    // The advice fails on a system without huge pages, where small pages do as well. It covers the
    // slack too: adjacent maps with equal advice merge into one, and the kernel limits their
    // number.
    #[cfg(target_os = "linux")]
    let _ = map.advise(match pages {
        PageSize::Huge => memmap2::Advice::HugePage,
        PageSize::Small => memmap2::Advice::NoHugePage,
    });
    let offset = to_huge_page(map.as_ptr().addr());
    #[cfg(target_os = "linux")]
    if let Some(rest) = short_rest(bytes) {
        let begin = offset + bytes - rest;
        let _ = map.advise_range(memmap2::Advice::NoHugePage, begin, map.len() - begin);
    }
    Some((map, offset))
}

/// Returns the memory of a mapped huge page to the system. It is zero afterwards, or keeps its
/// contents on other systems than Linux.
///
/// # Safety
/// Nothing refers to the page's memory except the caller's mutable references.
#[allow(unsafe_code)]
pub(super) unsafe fn discard(page: usize) {
    #[cfg(target_os = "linux")]
    {
        let address = std::ptr::without_provenance_mut(page);
        // SAFETY: the page is mapped, and the caller guarantees that nobody else reads it. A
        // failure leaves the memory as it was.
        let _ = unsafe { libc::madvise(address, HUGE_PAGE, libc::MADV_DONTNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = page;
}

/// Bytes from an address to the next huge page.
fn to_huge_page(address: usize) -> usize {
    address.next_multiple_of(HUGE_PAGE) - address
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the pages at an address, in KiB.
    #[cfg(target_os = "linux")]
    fn page_size(address: usize) -> usize {
        let holds = |line: &&str| {
            let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
            let number = |hex| usize::from_str_radix(hex, 16).ok();
            ends.and_then(|(from, to)| Some((number(from)?..number(to)?).contains(&address)))
                .unwrap_or(false)
        };
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = text.lines().skip_while(|line| !holds(line));
        let size = lines.find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Most systems reserve no huge pages; there, only the failures are tested.
    #[cfg(target_os = "linux")]
    #[test]
    fn reserved_huge_pages_are_used_if_there_are_any() {
        assert!(reserved(usize::MAX).is_none());
        assert!(reserved(1 << 50).is_none());
        let Some(map) = reserved(HUGE_PAGE / 2 + 1) else { return };
        assert_eq!(map.len(), HUGE_PAGE);
        assert!(map.iter().all(|&byte| byte == 0));
        assert_eq!(page_size(map.as_ptr().addr()), HUGE_PAGE / 1024);
    }

    #[test]
    fn a_short_rest_does_not_fill_a_huge_page() {
        let half = HUGE_PAGE / 2;
        for bytes in [1, half, HUGE_PAGE, HUGE_PAGE + half, 4 * HUGE_PAGE - 1] {
            assert_eq!(short_rest(bytes), None, "{bytes}");
        }
        for (bytes, rest) in [(HUGE_PAGE + 1, 1), (3 * HUGE_PAGE + half - 1, half - 1)] {
            assert_eq!(short_rest(bytes), Some(rest), "{bytes}");
        }
        let bytes = HUGE_PAGE + (64 << 10);
        let (mut map, offset) = map_aligned(bytes, PageSize::Huge).unwrap();
        map[offset..][..bytes].fill(1);
        #[cfg(target_os = "linux")]
        assert!(reserved(bytes).is_none());
    }

    /// Some kernels align large maps by themselves, so that an aligned map would prove nothing.
    #[test]
    fn a_huge_page_fits_at_any_alignment_of_the_map() {
        for page in [0, 1, 255, 256, 511] {
            let address = 3 * HUGE_PAGE + page * 4096;
            let offset = to_huge_page(address);
            assert!((address + offset).is_multiple_of(HUGE_PAGE));
            for bytes in [HUGE_PAGE / 2 + 1, HUGE_PAGE, HUGE_PAGE + 1] {
                let end = offset + bytes.next_multiple_of(HUGE_PAGE);
                assert!(end <= with_slack(bytes).unwrap());
            }
        }
        assert_eq!(with_slack(usize::MAX), None);
    }
}
