-- Run once by the PostgreSQL of deploy/compose.yaml: a database for each router.
CREATE DATABASE smp OWNER heliograph;
CREATE DATABASE ntf OWNER heliograph;
