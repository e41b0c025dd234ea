//! The index of prefixes: a tree of pages, in which each page is a child of the page that precedes it.
//!
//! Pages that were computed with different adapters, or for sessions with different salts, are in separate trees. A
//! node has the tokens of one page and its keys and values. A node with fewer tokens than a page has room for is a
//! leaf: another prompt that begins with some of its tokens takes the page, and copies it where the prompts differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use triad_kernels::attention::PAGE;

use super::page::Page;
use super::salt::PrefixSalt;
use crate::adapter::AdaptersKey;

/// The identity of the tree in which a prompt is looked up. A lookup neither returns nor visits pages of other trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tree {
    pub(super) salt: PrefixSalt,
    pub(super) adapters: AdaptersKey,
}

/// Pages by the tokens that they hold and that precede them.
#[derive(Default)]
pub(super) struct Prefixes {
    /// `None` for a removed node.
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    /// The nodes of first pages.
    roots: BTreeMap<Tree, Vec<usize>>,
    /// The number of calls so far, used as a time.
    now: u64,
}

struct Node {
    tokens: Vec<u32>,
    page: Page,
    parent: Parent,
    children: Vec<usize>,
    /// The time of the last lookup or insertion.
    used: u64,
}

/// The predecessor of a page.
#[derive(Clone, Copy)]
enum Parent {
    /// None: it is a first page of this tree.
    Root(Tree),
    Node(usize),
}

impl Prefixes {
    /// Returns the number of pages.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Returns the length and the pages of the longest prefix of `tokens` in this tree. The last page may hold more
    /// tokens.
    pub(super) fn find(&mut self, tree: Tree, tokens: &[u32]) -> (usize, Vec<Page>) {
        self.now += 1;
        let (mut length, mut pages, mut parent) = (0, Vec::new(), Parent::Root(tree));
        while length < tokens.len() {
            let rest = &tokens[length..];
            let common = |child: &&usize| common(&self.node(**child).tokens, rest);
            let Some(child) = self.children(parent).iter().max_by_key(common).copied() else {
                break;
            };
            let shared = common(&&child);
            if shared == 0 {
                break;
            }
            let now = self.now;
            let node = self.node_mut(child);
            node.used = now;
            pages.push(node.page.clone());
            length += shared;
            if shared < PAGE {
                break;
            }
            parent = Parent::Node(child);
        }
        (length, pages)
    }

    /// Adds the `pages` of `tokens`, from the first token on, to this tree.
    pub(super) fn insert(&mut self, tree: Tree, tokens: &[u32], pages: &[Page]) {
        self.now += 1;
        let mut parent = Parent::Root(tree);
        for (tokens, page) in tokens.chunks(PAGE).zip(pages) {
            let known = self
                .children(parent)
                .iter()
                .map(|child| (*child, common(&self.node(*child).tokens, tokens)));
            // A node with all of these tokens, or one with only the first of them, which is then replaced.
            let place = known
                .filter(|(child, common)| {
                    *common == tokens.len().min(self.node(*child).tokens.len())
                })
                .max_by_key(|(_, common)| *common);
            let (now, child) = (self.now, place.map(|(child, _)| child));
            let child = match child {
                Some(child) => {
                    let node = self.node_mut(child);
                    // Of two pages with the same tokens, the one that a sequence holds is kept.
                    let is_spare = node.tokens.len() == tokens.len() && !is_held(&node.page);
                    if node.tokens.len() < tokens.len() || is_spare {
                        (node.tokens, node.page) = (tokens.to_vec(), page.clone());
                    }
                    child
                }
                None => self.add(Node {
                    tokens: tokens.to_vec(),
                    page: page.clone(),
                    parent,
                    children: Vec::new(),
                    used: now,
                }),
            };
            self.node_mut(child).used = now;
            parent = Parent::Node(child);
        }
    }

    /// Removes the least recently used page that no sequence holds, preferably one that no other page follows. Returns
    /// false if sequences hold all pages.
    pub(super) fn evict(&mut self) -> bool {
        let nodes = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| Some((index, node.as_ref()?)));
        let unheld = nodes.filter(|(_, node)| !is_held(&node.page));
        let Some((oldest, _)) =
            unheld.min_by_key(|(_, node)| (!node.children.is_empty(), node.used))
        else {
            return false;
        };
        self.remove_with_children(oldest);
        true
    }

    /// Removes a page and all pages that follow it. The sequences that hold those have their own copies of this one.
    fn remove_with_children(&mut self, index: usize) {
        while let Some(child) = self.node(index).children.last().copied() {
            self.remove_with_children(child);
        }
        self.remove(index);
    }

    /// Removes `page`, even if sequences hold it. Returns false if it is not in the index, or other pages follow it.
    pub(super) fn remove_leaf(&mut self, page: &Page) -> bool {
        let is_it = |node: &Node| {
            node.children.is_empty()
                && std::iter::zip(&node.page, page).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        let place = self
            .nodes
            .iter()
            .position(|node| node.as_ref().is_some_and(is_it));
        place.inspect(|place| self.remove(*place)).is_some()
    }

    /// Removes a leaf.
    fn remove(&mut self, index: usize) {
        let node = self.nodes[index]
            .take()
            .expect("only existing nodes are removed");
        let siblings = match node.parent {
            Parent::Node(parent) => &mut self.node_mut(parent).children,
            Parent::Root(tree) => self.roots.entry(tree).or_default(),
        };
        siblings.retain(|sibling| *sibling != index);
        if let Parent::Root(tree) = node.parent
            && siblings.is_empty()
        {
            self.roots.remove(&tree);
        }
        self.free.push(index);
    }

    fn add(&mut self, node: Node) -> usize {
        let parent = node.parent;
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[index] = Some(node);
        match parent {
            Parent::Node(parent) => self.node_mut(parent).children.push(index),
            Parent::Root(tree) => self.roots.entry(tree).or_default().push(index),
        }
        index
    }

    fn children(&self, parent: Parent) -> &[usize] {
        match parent {
            Parent::Node(parent) => &self.node(parent).children,
            Parent::Root(tree) => self.roots.get(&tree).map_or(&[], Vec::as_slice),
        }
    }

    fn node(&self, index: usize) -> &Node {
        self.nodes[index]
            .as_ref()
            .expect("links lead to existing nodes")
    }

    fn node_mut(&mut self, index: usize) -> &mut Node {
        self.nodes[index]
            .as_mut()
            .expect("links lead to existing nodes")
    }
}

/// Returns whether a sequence also holds the page.
fn is_held(page: &Page) -> bool {
    page.iter().any(|block| Arc::strong_count(block) > 1)
}

/// Returns the length of the common prefix of two lists.
fn common(some: &[u32], others: &[u32]) -> usize {
    some.iter().zip(others).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use proptest::prelude::*;
    use triad_kernels::Matrix;

    use super::*;
    use crate::kv::KvFormat;
    use crate::kv::page::{BlockPage, Home, PageShape};

    const SHAPE: PageShape = PageShape {
        format: KvFormat::F32,
        kv_heads: 1,
        head_dim: 1,
        has_values: true,
        state: None,
    };

    /// Returns a key that depends on all `tokens`, as the keys and values at the last position do.
    fn key(tokens: &[u32]) -> f32 {
        (BuildHasherDefault::<DefaultHasher>::default().hash_one(tokens) % (1 << 20)) as f32
    }

    fn pages(home: &Arc<Home>, tokens: &[u32]) -> Vec<Page> {
        let page = |first: usize| {
            let keys: Vec<f32> = (first..tokens.len().min(first + PAGE))
                .map(|last| key(&tokens[..=last]))
                .collect();
            let mut page = BlockPage::new(SHAPE, home);
            page.write(&keys, &keys, 0, SHAPE);
            vec![Arc::new(page)]
        };
        (0..tokens.len()).step_by(PAGE).map(page).collect()
    }

    /// Generates lists that have much in common, and end close to the ends of pages.
    fn lists() -> impl Strategy<Value = Vec<u32>> {
        let length = prop::sample::select(vec![1usize, 40, PAGE - 1, PAGE, PAGE + 1]);
        let runs = prop::collection::vec((0u32..2, length), 1..5);
        runs.prop_map(|runs| {
            runs.into_iter()
                .flat_map(|(token, length)| vec![token; length])
                .collect()
        })
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Insert(Vec<u32>),
        Find(Vec<u32>),
        /// A sequence takes what it finds, and keeps it.
        Hold(Vec<u32>),
        Release,
        Evict,
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = prop_oneof![
            4 => lists().prop_map(Operation::Insert),
            3 => lists().prop_map(Operation::Find),
            1 => lists().prop_map(Operation::Hold),
            1 => Just(Operation::Release),
            2 => Just(Operation::Evict),
        ];
        prop::collection::vec(operation, 1..30)
    }

    /// Finds `tokens`, and checks the result.
    fn find(prefixes: &mut Prefixes, tokens: &[u32]) -> (usize, Vec<Page>) {
        let (length, pages) = prefixes.find(Tree::default(), tokens);
        assert_eq!(pages.len(), length.div_ceil(PAGE));
        for position in 0..length {
            let Matrix::F32(keys) = pages[position / PAGE][0].keys.view() else {
                unreachable!("pages are in f32")
            };
            assert_eq!(
                keys[position % PAGE],
                key(&tokens[..=position]),
                "position {position} of {length}"
            );
        }
        (length, pages)
    }

    proptest! {
        #[test]
        fn what_is_found_is_the_longest_beginning_that_was_inserted(operations in operations()) {
            let home = Arc::<Home>::default();
            let mut prefixes = Prefixes::default();
            let (mut inserted, mut held, mut is_all_there) = (Vec::<Vec<u32>>::new(), Vec::new(), true);
            for operation in operations {
                match operation {
                    Operation::Insert(tokens) => {
                        prefixes.insert(Tree::default(), &tokens, &pages(&home, &tokens));
                        prop_assert_eq!(find(&mut prefixes, &tokens).0, tokens.len());
                        inserted.push(tokens);
                    }
                    Operation::Find(tokens) => {
                        let length = find(&mut prefixes, &tokens).0;
                        let longest = inserted.iter().map(|other| common(other, &tokens)).max().unwrap_or(0);
                        prop_assert!(length == longest || !is_all_there && length < longest, "{length} of {longest}");
                    }
                    Operation::Hold(tokens) => {
                        let found = find(&mut prefixes, &tokens);
                        held.push((tokens, found));
                    }
                    Operation::Release => drop(held.pop()),
                    Operation::Evict => {
                        let (pages, bytes) = (prefixes.len(), home.used());
                        let evicted = prefixes.evict();
                        is_all_there &= !evicted;
                        prop_assert_eq!(prefixes.len(), pages - usize::from(evicted));
                        prop_assert_eq!(home.used(), bytes - if evicted { SHAPE.bytes() } else { 0 });
                    }
                }
            }
            while prefixes.evict() {}
            for (tokens, (length, pages)) in &held {
                let (again, same) = find(&mut prefixes, tokens);
                // A longer list may have replaced its last page meanwhile.
                prop_assert!(again >= length / PAGE * PAGE, "pages that a sequence holds stay");
                prop_assert!(std::iter::zip(pages, &same).take(length / PAGE).all(|(a, b)| Arc::ptr_eq(&a[0], &b[0])));
            }
            held.clear();
            while prefixes.evict() {}
            prop_assert_eq!((prefixes.len(), home.used()), (0, 0), "all pages that no sequence holds can be freed");
        }
    }

    #[test]
    fn a_page_that_no_sequence_holds_is_given_back_though_one_that_follows_it_is_held() {
        let home = Arc::<Home>::default();
        let mut prefixes = Prefixes::default();
        let tokens = [[0; PAGE], [1; PAGE]].concat();
        let mut inserted = pages(&home, &tokens);
        prefixes.insert(Tree::default(), &tokens, &inserted);
        let second = inserted.remove(1);
        assert!(!prefixes.evict(), "both are held");
        drop(inserted);
        assert!(prefixes.evict());
        assert_eq!((prefixes.len(), home.used()), (0, SHAPE.bytes()));
        drop(second);
        assert_eq!(home.used(), 0);
    }

    #[test]
    fn the_page_that_was_asked_for_least_recently_goes_first() {
        let home = Arc::<Home>::default();
        let mut prefixes = Prefixes::default();
        for token in 0..4 {
            prefixes.insert(
                Tree::default(),
                &[token; PAGE],
                &pages(&home, &[token; PAGE]),
            );
        }
        assert_eq!(prefixes.find(Tree::default(), &[0; PAGE]).0, PAGE);
        let left = |prefixes: &mut Prefixes| -> Vec<bool> {
            // The order does not change any entry.
            let nodes = prefixes
                .nodes
                .iter()
                .flatten()
                .map(|node| node.tokens[0])
                .collect::<Vec<_>>();
            (0..4).map(|token| nodes.contains(&token)).collect()
        };
        for expected in [
            [true, false, true, true],
            [true, false, false, true],
            [true, false, false, false],
            [false; 4],
        ] {
            assert!(prefixes.evict());
            assert_eq!(left(&mut prefixes), expected);
        }
        assert!(!prefixes.evict());
    }
}
