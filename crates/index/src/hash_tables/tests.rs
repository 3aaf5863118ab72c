//! Properties of signatures and probabilities that the method requires.

use proptest::prelude::*;
use vattention_core::{Step, Tokens};
use vattention_testkit::{Head, Texture, heads};

use super::lsh::squared_norm;
use super::*;

fn config(rule: Rule, transform: Transform, center: bool) -> HashTables {
    let (tables, bits) = (NonZeroU16::new(12).unwrap(), TableBits::try_from(4).unwrap());
    HashTables { tables, bits, rule, transform, center }
}

/// All combinations of rule, transform and centring.
fn modes() -> impl Iterator<Item = (Rule, Transform, bool)> {
    let all = [Rule::Any, Rule::Two].map(|rule| {
        [Transform::Angular, Transform::SimpleLsh]
            .map(|transform| [true, false].map(|center| (rule, transform, center)))
    });
    all.into_iter().flatten().flatten()
}

fn collisions(tables: u16, bits: u64, rule: Rule) -> Collisions {
    let tables = NonZeroU16::new(tables).unwrap();
    Collisions { tables, bits: TableBits::try_from(bits).unwrap(), rule }
}

/// Finds tokens after multiplying keys and query by factors.
fn find(config: &HashTables, head: &Head, key_scale: f32, query_scale: f32) -> Vec<usize> {
    let scaled = |tokens: Tokens<'_>| -> Vec<f32> {
        tokens.to_array(0..tokens.len()).iter().map(|x| x * key_scale).collect()
    };
    let part = head.part(0..head.tokens);
    let keys = scaled(part.keys);
    let keys = Tokens::new(&keys, head.tokens, head.dim);
    let mut index = config.index("test", head.site()).unwrap();
    index.append(&NewTokens { keys, ..part });
    let step = head.step(head.tokens);
    let queries: Vec<f32> = step.queries.iter().map(|x| x * query_scale).collect();
    index.found(&Step { keys, queries: &queries, ..step }.row(1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The binomial distribution is summed table by table.
    #[test]
    fn probabilities_are_binomial_tails(
        tables in 2_u16..300, bits in 1_u64..=16, cosine in -1.0..1.0_f64,
    ) {
        let x = (1.0 - cosine.acos() / std::f64::consts::PI).powi(bits as i32);
        let (mut none, mut one, mut more) = (1.0, 0.0, 0.0);
        for _ in 0..tables {
            (none, one, more) = (none * (1.0 - x), one * (1.0 - x) + none * x, more + one * x);
        }
        for (rule, want) in [(Rule::Any, one + more), (Rule::Two, more)] {
            let found = collisions(tables, bits, rule).probability(cosine);
            prop_assert!((found - want.max(1e-9)).abs() < 1e-9 + 1e-6 * want, "{found} for {want}");
        }
    }

    /// Probabilities rise with the cosine and with the number of tables, and fall with the bits.
    #[test]
    fn probabilities_are_monotone(
        tables in 2_u16..300, bits in 1_u64..=15, a in -1.0..1.0_f64, b in -1.0..1.0_f64,
    ) {
        for rule in [Rule::Any, Rule::Two] {
            let here = |tables, bits, cosine| collisions(tables, bits, rule).probability(cosine);
            let w = here(tables, bits, a);
            prop_assert!((1e-9..=1.0).contains(&w));
            prop_assert!(here(tables, bits, a.min(b)) <= here(tables, bits, a.max(b)) + 1e-12);
            prop_assert!(here(tables + 1, bits, a) >= w - 1e-12);
            prop_assert!(here(tables, bits + 1, a) <= w + 1e-12);
        }
    }

    /// Neither the length of the query nor a common factor of all keys changes the found tokens.
    #[test]
    fn found_tokens_do_not_depend_on_lengths(head in heads(300), power in -8_i32..8) {
        let scale = 2.0_f32.powi(power);
        for (rule, transform, center) in modes() {
            let config = config(rule, transform, center);
            let unscaled = find(&config, &head, 1.0, 1.0);
            prop_assert_eq!(&find(&config, &head, 1.0, scale), &unscaled);
            prop_assert_eq!(&find(&config, &head, scale, 1.0), &unscaled);
        }
    }

    #[test]
    fn angular_signatures_do_not_depend_on_lengths(seed in 0_u64..100, power in -8_i32..8) {
        let head = Head::new(BLOCK, 8, seed, Texture::Gaussian);
        let keys: Vec<Vec<f32>> = head.part(0..BLOCK).keys.to_array(0..BLOCK)
            .rows().into_iter().map(|row| row.to_vec()).collect();
        let mut longer = keys.clone();
        longer[5].iter_mut().for_each(|x| *x *= 2.0_f32.powi(power));
        let config = config(Rule::Two, Transform::Angular, false);
        let lsh = config.index("test", head.site()).unwrap().lsh;
        prop_assert_eq!(lsh.key_signatures(&keys, 1.0), lsh.key_signatures(&longer, 9.0));
    }

    /// A key that equals the query agrees in all tables: keys and queries have the same hash
    /// function.
    #[test]
    fn the_query_finds_itself(head in heads(40)) {
        for (rule, transform, _) in modes() {
            let lsh = config(rule, transform, false).index("test", head.site()).unwrap().lsh;
            let query = head.step(1).row(0).query().to_vec();
            let norm = squared_norm(&query).sqrt();
            let keys = lsh.key_signatures(std::slice::from_ref(&query), norm);
            let agree = keys.iter().zip(lsh.signatures(&query)).filter(|(key, q)| key[0] == *q);
            prop_assert!(agree.count() >= keys.len() - 1, "one table may differ by rounding");
        }
    }
}

#[test]
fn tokens_of_the_open_block_are_always_found() {
    let head = Head::new(3 * BLOCK + 7, 8, 4, Texture::Gaussian);
    for (rule, transform, center) in modes() {
        let mut index = config(rule, transform, center).index("test", head.site()).unwrap();
        index.append(&head.part(0..head.tokens));
        let step = head.step(head.tokens);
        let found: Vec<usize> = index.found(&step.row(0)).collect();
        let p = index.probabilities(&step.row(0), &found);
        let certain = found.iter().zip(&p).filter(|&(_, &p)| p == 1.0).map(|(&token, _)| token);
        assert!(certain.eq(3 * BLOCK..head.tokens), "{rule:?}, {transform:?}, {center}");
        assert!((8..head.tokens).contains(&found.len()), "{rule:?}, {transform:?}, {center}");
    }
}

/// Signatures and probabilities of a complete block do not depend on later tokens.
#[test]
fn complete_blocks_do_not_change() {
    let head = Head::new(4 * BLOCK, 8, 5, Texture::HeavyTail);
    for (rule, transform, center) in modes() {
        let mut index = config(rule, transform, center).index("test", head.site()).unwrap();
        let find = |index: &HashTableIndex| {
            let step = head.step(2 * BLOCK);
            let found: Vec<usize> = index.found(&step.row(0)).collect();
            (index.probabilities(&step.row(0), &found), found)
        };
        index.append(&head.part(0..2 * BLOCK));
        let before = find(&index);
        index.append(&head.part(2 * BLOCK..4 * BLOCK));
        assert_eq!(find(&index), before, "{rule:?}, {transform:?}, {center}");
    }
}

/// The mean of all keys up to the block's end is subtracted from the block's keys.
#[test]
fn the_mean_is_of_all_keys_so_far() {
    let head = Head::new(2 * BLOCK + 5, 8, 6, Texture::Gaussian);
    let config = config(Rule::Two, Transform::Angular, true);
    let mut index = config.index("test", head.site()).unwrap();
    index.append(&head.part(0..head.tokens));
    let keys = head.part(0..2 * BLOCK).keys.to_array(0..2 * BLOCK);
    let mean = keys.mean_axis(vattention_core::ndarray::Axis(0)).unwrap();
    let mut zero = [0.0; 8];
    for (x, mean) in index.blocks[1].center(&mut zero).iter().zip(&mean) {
        assert!((x + mean).abs() < 1e-6, "{x} for {mean}");
    }
}

#[test]
fn tables_depend_on_seed_sequence_layer_and_kv_head() {
    let site = *Head::new(1, 4, 3, Texture::Flat).site();
    let draw = |site: Site| gaussians::draw(&site, 3, 5);
    assert_eq!(draw(site), draw(site));
    for other in [
        Site { seed: 4, ..site },
        Site { sequence: 1, ..site },
        Site { layer: 1, ..site },
        Site { kv_head: 1, ..site },
    ] {
        assert_ne!(draw(other), draw(site));
    }
    let many = gaussians::draw(&site, 1000, 9);
    let mean = |power: i32| many.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / 9000.0;
    // Five standard deviations of the mean of 9000 numbers.
    for (power, want, variance) in [(1, 0.0, 1.0_f64), (2, 1.0, 2.0), (4, 3.0, 96.0)] {
        let error = (mean(power) - want).abs();
        assert!(error < 5.0 * (variance / 9000.0).sqrt(), "power {power}: {error}");
    }
}

#[test]
fn impossible_settings_are_refused() {
    let one = NonZeroU16::MIN;
    let site = *Head::new(1, 4, 3, Texture::Flat).site();
    let two = HashTables { tables: one, ..serde_json::from_str("{}").unwrap() };
    let error = two.index("magic-pig", &site).unwrap_err().to_string();
    assert_eq!(error, "magic-pig: rule = \"two\" needs two tables or more, got tables = 1");
    assert!(HashTables { rule: Rule::Any, ..two }.index("magic-pig", &site).is_ok());
    for bad in [r#"{"bits": 0}"#, r#"{"bits": 17}"#, r#"{"tables": 0}"#, r#"{"tables": 70000}"#] {
        assert!(serde_json::from_str::<HashTables>(bad).is_err(), "{bad}");
    }
}

#[test]
fn index_bytes_are_those_of_complete_blocks() {
    let head = Head::new(2 * BLOCK + 9, 8, 5, Texture::Gaussian);
    let config = config(Rule::Two, Transform::Angular, true);
    let mut index = config.index("test", head.site()).unwrap();
    index.append(&head.part(0..head.tokens));
    assert_eq!(index.bytes(), 2 * (12 * BLOCK * 2 + 8 * 4 + 8));
}

/// Buckets have probabilities that sum to 1 in each table. With hard signs, soft collisions count
/// the tables in which a key agrees with the query.
#[test]
fn soft_collisions_count_tables_if_signs_are_hard() {
    let head = Head::new(2 * BLOCK + 9, 8, 5, Texture::Gaussian);
    let config = config(Rule::Any, Transform::Angular, false);
    let mut index = config.index("test", head.site()).unwrap();
    index.append(&head.part(0..head.tokens));
    for row in head.step(head.tokens).rows() {
        for soften in [|x: f32| 0.3 * x, |x: f32| 100.0 * x.signum()] {
            let buckets = index.lsh.bucket_probabilities(row.query(), soften);
            assert_eq!((buckets.len(), buckets[0].len()), (12, 16));
            for table in buckets {
                assert!((table.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{table:?}");
            }
        }
        let counts = index.soft_collisions(&row, |x| 100.0 * x.signum());
        let query = index.lsh.signatures(row.query());
        for (block, counts) in index.blocks.iter().zip(counts.chunks(BLOCK)) {
            let agreeing = block.count_agreeing_tables(&query);
            let close = |(a, &b): (&f32, &u16)| (a - f32::from(b)).abs() < 1e-5;
            assert!(counts.iter().zip(&agreeing).all(close), "{counts:?}, not {agreeing:?}");
        }
        assert_eq!(index.soft_collisions(&row, |x| x).len(), 2 * BLOCK);
    }
}
