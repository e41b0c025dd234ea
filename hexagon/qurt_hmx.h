// HMX on QuRT.
#pragma once

// Makes the calling thread the one that may issue instructions of HMX. Returns whether it may.
int qurt_hmx_lock_thread(void);
void qurt_hmx_unlock_thread(void);
