//! Test that the files of a crate do not use each other in circles.
//!
//! In a circle of files each file uses the next one, by a `use` declaration or a path from `crate`,
//! `self` or `super`. A use of a re-exported name counts as a use of the file that defines it. Uses
//! of the crate's root, uses of a file by the files in the folder of the same name, and uses by
//! tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::sources;

/// Path of a module from the crate's root, which is a file.
type Module = Vec<String>;

/// The files of one crate.
#[derive(Default)]
struct Crate {
    texts: BTreeMap<Module, String>,
    /// Path from which each name of a module is imported.
    imports: BTreeMap<(Module, String), Vec<String>>,
}

impl Crate {
    fn read(src: &Path) -> Self {
        let mut files = Vec::new();
        sources::add_sources(src, &mut files);
        let mut found = Self::default();
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            let relative = file.strip_prefix(src).unwrap().with_extension("");
            let parts = relative.iter().map(|part| part.to_str().unwrap().to_owned());
            let module = parts.filter(|part| !["lib", "main", "mod"].contains(&&part[..]));
            found.add(module.collect(), &std::fs::read_to_string(file).unwrap());
        }
        found
    }

    fn add(&mut self, module: Module, text: &str) {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = code.lines().map(|line| line.split("//").next().unwrap());
        let text = lines.collect::<Vec<_>>().join("\n");
        for (path, name) in declarations(&text) {
            self.imports.insert((module.clone(), name), path);
        }
        self.texts.insert(module, text);
    }

    /// File that defines the item to which `path` refers in `module`; `None` outside this crate.
    fn find_definition(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let mut file = match &path.first()?[..] {
            "crate" => Module::new(),
            "self" | "super" => module.clone(),
            first => {
                let child = [&module[..], &[first.to_owned()]].concat();
                self.texts.contains_key(&child).then(|| module.clone())?
            }
        };
        for (i, name) in path.iter().enumerate() {
            let child = [&file[..], std::slice::from_ref(name)].concat();
            if name == "super" {
                file.pop();
            } else if self.texts.contains_key(&child) {
                file = child;
            } else if let Some(from) = self.imports.get(&(file.clone(), name.clone()))
                && depth < 9
            {
                let whole = [&from[..], &path[i + 1..]].concat();
                return self.find_definition(&file, &whole, depth + 1);
            }
        }
        Some(file)
    }

    /// Files that each file uses, without the root.
    fn uses(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let mut uses = BTreeMap::new();
        for (module, text) in self.texts.iter().filter(|(module, _)| !module.is_empty()) {
            let declared = declarations(text).into_iter().map(|(path, _)| path);
            let used = declared.chain(inline_paths(text));
            let files = used.filter_map(|path| self.find_definition(module, &path, 0));
            uses.insert(module, files.filter(|file| !module.starts_with(file)).collect());
        }
        uses
    }

    /// Sets of files that use each other, directly or indirectly.
    fn circles(&self) -> Vec<BTreeSet<Module>> {
        let uses = self.uses();
        let reach = |from: &Module| {
            let (mut found, mut open) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(file) = open.pop() {
                let new = uses.get(&file).into_iter().flatten();
                open.extend(new.filter(|file| found.insert((*file).clone())).cloned());
            }
            found
        };
        let reached: BTreeMap<Module, _> =
            uses.keys().map(|&file| (file.clone(), reach(file))).collect();
        let circle = |(file, others): (&Module, &BTreeSet<Module>)| {
            others.iter().filter(|other| reached[*other].contains(file)).cloned().collect()
        };
        let circles: BTreeSet<BTreeSet<Module>> = reached.iter().map(circle).collect();
        circles.into_iter().filter(|circle| !circle.is_empty()).collect()
    }
}

/// Paths that `use` declarations import, and the names under which they import them.
fn declarations(text: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    for part in text.split("use ").skip(1) {
        expand(part.split(';').next().unwrap(), &[], &mut found);
    }
    found
}

/// Adds the leaves of a `use` tree to `found`.
fn expand(tree: &str, prefix: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    if let Some(group) = tree.strip_prefix('{') {
        let (mut depth, mut start) = (0, 0);
        let group = group.strip_suffix('}').unwrap_or(group);
        for (i, c) in group.char_indices().chain([(group.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&group[start..i], prefix, found);
                    start = i + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let end = tree.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tree.len());
    let (name, rest) = tree.split_at(end);
    if name.is_empty() {
        return;
    }
    let path = [prefix, &[name.to_owned()]].concat();
    match (rest.strip_prefix("::"), rest.strip_prefix(" as ")) {
        (Some(rest), _) => expand(rest, &path, found),
        (_, Some(alias)) => found.push((path, alias.to_owned())),
        _ => found.push((path, name.to_owned())),
    }
}

/// Paths in a text that begin with `crate`, `self` or `super`.
fn inline_paths(text: &str) -> Vec<Vec<String>> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.contains("::"));
    let paths = words.map(|word| word.split("::").map(str::to_owned).collect::<Vec<_>>());
    paths.filter(|path| ["crate", "self", "super"].contains(&&path[0][..])).collect()
}

#[test]
fn no_files_of_a_crate_form_a_circle() {
    let crates = sources::crates();
    assert!(crates.len() > 15, "{crates:?}");
    let found: Vec<_> = crates
        .iter()
        .flat_map(|folder| {
            let circles = Crate::read(&folder.join("src")).circles();
            circles.into_iter().map(move |circle| (folder, circle))
        })
        .map(|(folder, circle)| {
            let files: Vec<String> = circle.iter().map(|file| file.join("/")).collect();
            format!("{}: {}", folder.display(), files.join(", "))
        })
        .collect();
    assert!(found.is_empty(), "circles:\n{}", found.join("\n"));
}

#[test]
fn circles_are_found() {
    let circles = |files: &[(&str, &str)]| {
        let mut found = Crate::default();
        for (module, text) in files {
            let module = module.split('/').filter(|part| !part.is_empty());
            found.add(module.map(str::to_owned).collect(), text);
        }
        found.circles().len()
    };
    let root = ("", "mod a; mod b; pub use a::A; pub use b::{B, C as D};");
    assert_eq!(circles(&[root, ("a", "use crate::B;"), ("b", "use crate::{\n    A};")]), 1);
    assert_eq!(circles(&[root, ("a", "fn f(_: super::D) {}"), ("b", "use crate::a::A;")]), 1);
    assert_eq!(circles(&[root, ("a", "use crate::B;"), ("b", "// use crate::A;")]), 0);
    assert_eq!(circles(&[root, ("a", "use std::B;"), ("b", "use crate::A;")]), 0);
    let child = ("a/c", "use super::A;");
    assert_eq!(circles(&[root, ("a", "mod c; use c::E;"), child, ("b", "")]), 0, "one folder");
    assert_eq!(circles(&[root, ("a", "mod c; use c::E;"), child, ("b", "use crate::A;")]), 0);
    let (through, sibling) = (("a/c", "use super::d::F;"), ("a/d", "use super::c::E;"));
    assert_eq!(circles(&[root, ("a", "mod c; mod d;"), through, sibling, ("b", "")]), 1);
    let through = ("a", "mod c; use crate::B;");
    assert_eq!(circles(&[root, through, child, ("b", "use crate::a::c::E;")]), 0);
    assert_eq!(circles(&[root, through, child, ("b", "use crate::A;")]), 1);
}
