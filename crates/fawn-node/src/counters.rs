//! Tables of counters and gauges: a row gives a value its field, its sum over shards, and its name on every page.

/// Names of a value. An empty name: the page does not have the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CounterNames {
    /// Field of the table.
    pub field: &'static str,
    /// Help text.
    pub help: &'static str,
    /// On `/metrics`. Counters end with `_total`, all others are gauges.
    pub prometheus: &'static str,
    /// In `INFO`: section, colon, name.
    pub info: &'static str,
    /// In memcached's `stats`.
    pub stats: &'static str,
}

/// A page that receives values with their names.
pub type CounterVisitor<'a> = dyn FnMut(&'static CounterNames, u64) + 'a;

/// A value of a table, or a table.
pub trait Counted {
    /// Adds the value of another shard or store.
    fn add(&mut self, other: &Self);

    /// Passes the value, or the rows of the table, to a page.
    fn visit_as(&self, _names: &'static CounterNames, _visit: &mut CounterVisitor<'_>) {}

    /// Passes the rows of the table to a page.
    fn visit(&self, visit: &mut CounterVisitor<'_>) {
        self.visit_as(&CounterNames { field: "", help: "", prometheus: "", info: "", stats: "" }, visit);
    }
}

/// Defines a table: a struct that implements [`Counted`], with a row per value.
///
/// Fields under `apart` are added too, but pages visit them by themselves or not at all.
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $table:ident {
            $(
                $field:ident: $type:ty, $help:literal
                $(, prometheus $prometheus:literal)? $(, info $info:literal)? $(, stats $stats:literal)?;
            )*
        }
        $(apart { $($apart:ident: $apart_type:ty, $apart_help:literal;)* })?
    ) => {
        $(#[$meta])*
        $vis struct $table {
            $(#[doc = $help] $vis $field: $type,)*
            $($(#[doc = $apart_help] $vis $apart: $apart_type,)*)?
        }

        impl $crate::counters::Counted for $table {
            fn add(&mut self, other: &Self) {
                $($crate::counters::Counted::add(&mut self.$field, &other.$field);)*
                $($($crate::counters::Counted::add(&mut self.$apart, &other.$apart);)*)?
            }

            fn visit_as(
                &self,
                _: &'static $crate::counters::CounterNames,
                visit: &mut $crate::counters::CounterVisitor<'_>,
            ) {
                $($crate::counters::Counted::visit_as(
                    &self.$field,
                    &$crate::counters::CounterNames {
                        field: stringify!($field),
                        help: $help,
                        prometheus: concat!($($prometheus)?),
                        info: concat!($($info)?),
                        stats: concat!($($stats)?),
                    },
                    visit,
                );)*
            }
        }
    };
}

impl Counted for u64 {
    fn add(&mut self, other: &Self) {
        *self += other;
    }

    fn visit_as(&self, names: &'static CounterNames, visit: &mut CounterVisitor<'_>) {
        visit(names, *self);
    }
}

impl Counted for usize {
    fn add(&mut self, other: &Self) {
        *self += other;
    }

    fn visit_as(&self, names: &'static CounterNames, visit: &mut CounterVisitor<'_>) {
        visit(names, *self as u64);
    }
}

impl Counted for bool {
    fn add(&mut self, other: &Self) {
        *self |= other;
    }

    fn visit_as(&self, names: &'static CounterNames, visit: &mut CounterVisitor<'_>) {
        visit(names, u64::from(*self));
    }
}

/// A failure: the first one is kept, pages have 1 for any.
impl Counted for Option<String> {
    fn add(&mut self, other: &Self) {
        if self.is_none() {
            self.clone_from(other);
        }
    }

    fn visit_as(&self, names: &'static CounterNames, visit: &mut CounterVisitor<'_>) {
        visit(names, u64::from(self.is_some()));
    }
}

/// A name: all shards have the same, an empty sum has none.
impl Counted for &'static str {
    fn add(&mut self, other: &Self) {
        if !other.is_empty() {
            *self = other;
        }
    }
}
