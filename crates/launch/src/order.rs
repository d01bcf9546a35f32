//! The order of an allocation's nodes, so that neighbours in rank share switches.
