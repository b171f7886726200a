//! Chain members of a shard, hosted on its engine.
mod member_table;
mod record_result;

pub(crate) use member_table::{
    Cut, HostedMember, MemberTable, RangeSlot, RejectedRecords, TransferBegin, TransferProgress,
};
pub(crate) use record_result::{put_acknowledged, split_acknowledged};
