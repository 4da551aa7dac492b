/* Has MKL take the code that it has for Intel's processors, which it leaves out on others. Preloaded, this answer comes
   before the one in torch. What the processor cannot do MKL still finds out by itself. */
int mkl_serv_intel_cpu_true(void) { return 1; }
