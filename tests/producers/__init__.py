"""Tests of the producer: against real Redis servers, real forks, real signals, real disks."""
