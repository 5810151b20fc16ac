//! Cycles in a directed graph with labels on its edges: the strongly connected components (Tarjan's
//! algorithm, without recursion), and a short cycle in one of them, for a report.
//!
//! An edge has a length of 0 or 1, so that a caller may route edges over nodes of its own without
//! effect on the length of a cycle.

use std::collections::VecDeque;

/// The most edges from which [`Graph::cycle`] searches for a short cycle.
const MAX_STARTS: usize = 100;

/// The length without the first edge of a cycle that is short enough to end the search.
const SHORT: u32 = 1;

/// The index of a node that the search for components has not reached.
const UNSEEN: usize = usize::MAX;

/// A directed graph whose nodes are numbers and whose edges have labels.
#[derive(Clone, Debug)]
pub(super) struct Graph<L> {
    edges: Vec<Vec<Edge<L>>>,
}

#[derive(Clone, Copy, Debug)]
struct Edge<L> {
    to: usize,
    length: u32,
    label: L,
}

/// An edge of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step<L> {
    /// The node at which the edge of the cycle begins.
    pub from: usize,
    /// The node at which the edge of the cycle ends.
    pub to: usize,
    /// The label of the edge.
    pub label: L,
}

impl<L: Copy> Graph<L> {
    /// Makes a graph of `nodes` nodes without edges.
    pub(super) fn new(nodes: usize) -> Self {
        Self { edges: (0..nodes).map(|_| Vec::new()).collect() }
    }

    /// Adds an edge with a length of 0 or 1. The graph ignores an edge from a node to itself.
    pub(super) fn edge(&mut self, from: usize, to: usize, length: u32, label: L) {
        if from != to {
            self.edges[from].push(Edge { to, length, label });
        }
    }

    /// Returns a short cycle of the graph, or none if the graph has no cycle.
    ///
    /// The search begins at the edges for which `rank` returns a number, those with the lowest
    /// numbers first. Every cycle must have such an edge.
    pub(super) fn cycle(
        &self,
        rank: impl Fn(usize, usize) -> Option<i128>,
    ) -> Option<Vec<Step<L>>> {
        let component = self.components().into_iter().min_by_key(Vec::len)?;
        let mut inside = vec![false; self.edges.len()];
        component.iter().for_each(|&node| inside[node] = true);
        let mut starts = Vec::new();
        for &from in &component {
            for edge in self.edges[from].iter().filter(|edge| inside[edge.to]) {
                starts.extend(rank(from, edge.to).map(|rank| (rank, from, *edge)));
            }
        }
        starts.sort_by_key(|&(rank, from, edge)| (rank, from, edge.to));
        starts.truncate(MAX_STARTS);
        let mut best: Option<(u32, Vec<Step<L>>)> = None;
        for (_, from, edge) in starts {
            let limit = best.as_ref().map_or(u32::MAX, |(length, _)| length - edge.length);
            if limit <= SHORT {
                break;
            }
            if let Some((length, mut steps)) = self.path(edge.to, from, &inside, limit) {
                steps.push(Step { from, to: edge.to, label: edge.label });
                best = Some((length + edge.length, steps));
            }
        }
        best.map(|(_, steps)| steps)
    }

    /// Returns the strongly connected components of more than one node.
    fn components(&self) -> Vec<Vec<usize>> {
        let count = self.edges.len();
        let (mut index, mut low) = (vec![UNSEEN; count], vec![UNSEEN; count]);
        let (mut open, mut stack) = (vec![false; count], Vec::new());
        // The nodes on the way to the present one, each with its next edge.
        let mut way: Vec<(usize, usize)> = Vec::new();
        let (mut next, mut found) = (0, Vec::new());
        for root in 0..count {
            if index[root] == UNSEEN {
                way.push((root, 0));
            }
            while let Some((node, edge)) = way.last_mut() {
                let (at, position) = (*node, *edge);
                *edge += 1;
                if position == 0 {
                    (index[at], low[at], open[at]) = (next, next, true);
                    next += 1;
                    stack.push(at);
                }
                if let Some(edge) = self.edges[at].get(position) {
                    if index[edge.to] == UNSEEN {
                        way.push((edge.to, 0));
                    } else if open[edge.to] {
                        low[at] = low[at].min(index[edge.to]);
                    }
                    continue;
                }
                way.pop();
                if let Some(&(parent, _)) = way.last() {
                    low[parent] = low[parent].min(low[at]);
                }
                if low[at] == index[at] {
                    let first = stack.iter().rposition(|&node| node == at).unwrap_or(0);
                    let component = stack.split_off(first);
                    component.iter().for_each(|&node| open[node] = false);
                    found.extend((component.len() > 1).then_some(component));
                }
            }
        }
        found
    }

    /// Returns the shortest path between two nodes over nodes `inside`, and its length, if it is
    /// shorter than `limit`.
    fn path(
        &self,
        from: usize,
        to: usize,
        inside: &[bool],
        limit: u32,
    ) -> Option<(u32, Vec<Step<L>>)> {
        let mut lengths = vec![u32::MAX; self.edges.len()];
        let mut before: Vec<Option<Step<L>>> = vec![None; self.edges.len()];
        lengths[from] = 0;
        let mut todo = VecDeque::from([(from, 0)]);
        while let Some((node, length)) = todo.pop_front() {
            if node == to || length >= limit {
                break;
            }
            if length > lengths[node] {
                continue;
            }
            for edge in self.edges[node].iter().filter(|edge| inside[edge.to]) {
                let longer = length + edge.length;
                if longer < lengths[edge.to] {
                    lengths[edge.to] = longer;
                    before[edge.to] = Some(Step { from: node, to: edge.to, label: edge.label });
                    if edge.length == 0 {
                        todo.push_front((edge.to, longer));
                    } else {
                        todo.push_back((edge.to, longer));
                    }
                }
            }
        }
        if lengths[to] >= limit {
            return None;
        }
        let (mut steps, mut node) = (Vec::new(), to);
        while let Some(step) = before[node].filter(|_| node != from) {
            steps.push(step);
            node = step.from;
        }
        steps.reverse();
        Some((lengths[to], steps))
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::Rng;

    use super::*;

    fn graph(nodes: usize, edges: &[(usize, usize)]) -> Graph<()> {
        let mut graph = Graph::new(nodes);
        edges.iter().for_each(|&(from, to)| graph.edge(from, to, 1, ()));
        graph
    }

    fn nodes(graph: &Graph<()>) -> Option<Vec<usize>> {
        let steps = graph.cycle(|_, _| Some(0))?;
        for (i, step) in steps.iter().enumerate() {
            assert_eq!(step.to, steps[(i + 1) % steps.len()].from, "{steps:?}");
        }
        let mut nodes: Vec<_> = steps.iter().map(|step| step.from).collect();
        nodes.sort_unstable();
        Some(nodes)
    }

    #[test]
    fn the_shortest_cycle_is_found() {
        assert_eq!(nodes(&graph(4, &[(0, 1), (1, 2), (0, 3), (3, 2), (2, 2)])), None);
        let edges = [(0, 1), (1, 2), (2, 3), (3, 0), (3, 2)];
        assert_eq!(nodes(&graph(4, &edges)), Some(vec![2, 3]));
        assert_eq!(nodes(&graph(4, &edges[..4])), Some(vec![0, 1, 2, 3]));
    }

    /// A chain of edges without length does not make a cycle longer.
    #[test]
    fn edges_without_length_are_free() {
        let mut graph = graph(1000, &[(999, 0), (0, 1), (1, 2), (2, 999)]);
        (0..999).filter(|&i| i != 1).for_each(|i| graph.edge(i, i + 1, 0, ()));
        graph.edge(0, 3, 0, ());
        assert_eq!(nodes(&graph).map(|nodes| nodes.len()), Some(998));
    }

    /// The search does not use the stack of its thread, which a long chain would exhaust.
    #[test]
    fn a_long_chain_is_searched() {
        let mut edges: Vec<_> = (0..300_000).map(|i| (i, i + 1)).collect();
        assert_eq!(nodes(&graph(300_001, &edges)), None);
        edges.push((300_000, 299_999));
        assert_eq!(nodes(&graph(300_001, &edges)), Some(vec![299_999, 300_000]));
    }

    /// A graph has a cycle exactly if nodes remain when those without edges into them are removed.
    #[test]
    fn a_cycle_is_found_exactly_if_there_is_one() {
        let (mut rng, mut cyclic) = (Rng::seeded(3), 0);
        for _ in 0..3_000 {
            let count = 2 + rng.below(9) as usize;
            let mut node = || rng.below(count as u64) as usize;
            let edges: Vec<_> = (0..count).map(|_| (node(), node())).collect();
            let mut left: Vec<_> = edges.iter().copied().filter(|(a, b)| a != b).collect();
            for _ in 0..count {
                let targets: Vec<_> = left.iter().map(|&(_, to)| to).collect();
                left.retain(|(from, _)| targets.contains(from));
            }
            assert_eq!(nodes(&graph(count, &edges)).is_some(), !left.is_empty(), "{edges:?}");
            cyclic += u32::from(!left.is_empty());
        }
        assert!((500..2_500).contains(&cyclic), "{cyclic} graphs have a cycle");
    }
}
