//! Counting: guards over the policy's counts, the shared table, the kernel's programs.
