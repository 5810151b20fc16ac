//! Ranges of the order of an index, and the entries of leaves in them.

use alloc::vec::Vec;

use super::node::{Goal, Node, OwnedPoint, Point};

/// The end of a range at which a look-up begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Ascending,
    Descending,
}

/// A range of points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) from: Point<'a>,
    /// The first point behind the range. `None`: there is none.
    pub(crate) to: Option<Point<'a>>,
}

impl Order {
    /// Returns the point where the rest behind a point begins, or in descending order ends.
    pub(crate) fn behind(self, point: Point<'_>) -> OwnedPoint {
        match self {
            Self::Ascending => point.to_owned().next(),
            Self::Descending => point.to_owned(),
        }
    }
}

impl<'a> Span<'a> {
    /// Returns the end of the range at which a look-up begins. `None`: there is none.
    pub(crate) fn begin(self, order: Order) -> Option<Point<'a>> {
        match order {
            Order::Ascending => Some(self.from),
            Order::Descending => self.to,
        }
    }

    /// Returns the part of the range that begins at a point.
    pub(crate) fn beyond(self, order: Order, at: Point<'a>) -> Self {
        match order {
            Order::Ascending => Self { from: at, ..self },
            Order::Descending => Self { to: Some(at), ..self },
        }
    }

    pub(crate) fn is_behind(self, point: Point<'_>) -> bool {
        self.to.is_some_and(|to| to <= point)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.is_behind(self.from)
    }

    /// Returns the goal of the way to the leaf at which a look-up begins.
    pub(crate) fn goal(self, order: Order) -> Goal<'a> {
        match order {
            Order::Ascending => Goal::At(self.from),
            Order::Descending => Goal::Before(self.to),
        }
    }

    /// Adds the points of leaves in the range to `points` in this order, at most `most` in all. The
    /// leaves follow each other, unless one was split or merged while they were read. Returns the
    /// point where the rest of the range begins, or in descending order ends.
    pub(crate) fn points<'n>(
        self,
        order: Order,
        nodes: impl Iterator<Item = Node<'n>>,
        points: &mut Vec<Point<'n>>,
        most: usize,
    ) -> Option<OwnedPoint> {
        match order {
            Order::Ascending => self.points_up(nodes, points, most),
            Order::Descending => self.points_down(nodes, points, most),
        }
    }

    fn points_up<'n>(
        self,
        nodes: impl Iterator<Item = Node<'n>>,
        points: &mut Vec<Point<'n>>,
        most: usize,
    ) -> Option<OwnedPoint> {
        let mut at = None;
        for node in nodes {
            if at.is_some_and(|at| at != node.start) {
                break;
            }
            let first = node.before(self.from);
            let behind = (first..node.len()).find(|&i| self.is_behind(node.entry(i).point));
            let last = behind.unwrap_or(node.len());
            let end = last.min(first + most - points.len());
            points.extend((first..end).map(|i| node.entry(i).point));
            if end < last {
                return points.last().map(|last| Order::Ascending.behind(*last));
            }
            at = node.end.filter(|end| behind.is_none() && !self.is_behind(*end));
            if at.is_none() || points.len() == most {
                break;
            }
        }
        at.map(Point::to_owned)
    }

    /// Each leaf is the one before the last.
    fn points_down<'n>(
        self,
        nodes: impl Iterator<Item = Node<'n>>,
        points: &mut Vec<Point<'n>>,
        most: usize,
    ) -> Option<OwnedPoint> {
        let mut at = None;
        for node in nodes {
            if at.is_some_and(|at| Some(at) != node.end) {
                break;
            }
            let first = node.before(self.from);
            let last = self.to.map_or(node.len(), |to| node.before(to));
            let begin = first.max(last.saturating_sub(most - points.len()));
            points.extend((begin..last).rev().map(|i| node.entry(i).point));
            if begin > first {
                return points.last().map(|last| Order::Descending.behind(*last));
            }
            at = Some(node.start).filter(|start| self.from < *start);
            if at.is_none() || points.len() == most {
                break;
            }
        }
        at.map(Point::to_owned)
    }
}
