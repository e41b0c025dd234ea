//! Questions asked of many simulations.
